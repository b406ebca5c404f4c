"""What one pass over rows is made of, as plain data: chunks, row maps, the plan of segments, the merge tree, folds."""
