"""A resumable batch job: a digit corpus of any size, its fit and its error."""
