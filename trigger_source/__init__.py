"""Reading a topic: the tail that `subscribe` and Spark share, and Spark's readers, stream and batch."""
