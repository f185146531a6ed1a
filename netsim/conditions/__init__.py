"""What a network is like: links, nodes, times, presets."""
