"""Whole networks over pictures, and the parts on feature maps that they are made of."""
