"""What the kernels of several codecs share."""
