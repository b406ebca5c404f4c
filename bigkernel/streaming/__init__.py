"""One pass over rows as plain data: chunks, row maps, the plan of segments, the merge tree, folds."""
