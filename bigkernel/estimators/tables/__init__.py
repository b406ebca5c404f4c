"""Tables with text, metrics, and models in parts.

table_encoder : from tables with text, times and missing values to numbers
learned_metric : which features a kernel should see, learned from targets
blended : which models may be inside other models, and what remains of each
leaf_fits : the sweep that fits leaves
residual : regressors in stages, each fitted to what those before it leave
partitioned : models of regions of the space, blended at the borders
tabular : models without settings, chosen by held-out rows
kriging : fields from their values at places
"""
