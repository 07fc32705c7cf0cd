"""The tests, in folders that mirror the packages and the kinds of proof."""
