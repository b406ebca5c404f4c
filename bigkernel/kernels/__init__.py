"""From rows to a block of k(x, z): kernel functions, blocks, feature maps, landmarks."""
