"""What every other package may rely on: errors, options, names, the wakeup codec. No I/O, no Spark, no Delta."""
