"""What `tg.compile` gives: a training, and its loop over batches."""
