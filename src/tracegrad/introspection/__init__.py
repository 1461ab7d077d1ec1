"""What a step consists of and where its time goes, as tables and pictures."""
