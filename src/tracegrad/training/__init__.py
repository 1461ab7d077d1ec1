"""The training that `tg.compile` returns, and its loop over batches."""
