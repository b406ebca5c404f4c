"""What people ask for who work in Python by hand: corpora of their arrays, tables and pictures of what they have."""
