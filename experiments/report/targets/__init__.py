"""Other targets than the recorded one: when runs would have reached them."""
