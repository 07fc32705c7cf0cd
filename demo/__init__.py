"""`make demo`: the product in half a minute, in a terminal."""
