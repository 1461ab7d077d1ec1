"""What a program consists of, what it holds and where its time goes: text, tables and HTML."""
