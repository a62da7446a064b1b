"""Wire formats of products, with one folder for each product. All implement the same interface."""
