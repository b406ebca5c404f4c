"""From what users pass to what a fit takes.

checks : settings, rows, the size of exact forms and the range of numbers; errors name what is wrong
training : rows with their columns, how y becomes targets, and the names of both
columns : weights and domains, and what is counted from columns alone
classes : labels, the classes among them, and how they become targets
class_weights : factors of the weights of the rows of a class
exact : rows of the exact form, with their kernel matrix
read : validated rows of any input, with their targets
"""
