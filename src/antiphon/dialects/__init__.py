"""Wire formats: one folder for each product's, over one seam."""
