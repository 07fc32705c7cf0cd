"""Writing to a topic: the producer that `publish` and Spark share, and Spark's writers, task side and commit side."""
