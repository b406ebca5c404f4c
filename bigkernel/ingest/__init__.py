"""Other people's files become a corpus."""
