"""From what users pass to what a fit takes.

checks : settings, rows, the size of exact forms and the range of numbers; errors name what is wrong
training : rows with their columns, how y becomes targets, and the names of both
read : validated rows, classes, domains and weights of any input
"""
