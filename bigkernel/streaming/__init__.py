"""One pass over rows as plain data: chunks, row maps, the plan of segments, the merge tree, folds.

devices : where blocks are computed, by which array library
chunk : rows with their columns, row maps, and the buffers of a task
plan : segments, the tree of their merges, receipts, and the cost of a sweep
folds : which fold tests a row
images : row maps for images of digits
row_maps : row maps for numbers
"""
