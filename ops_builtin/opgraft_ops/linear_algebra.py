"""Matrix products and what belongs to them."""
