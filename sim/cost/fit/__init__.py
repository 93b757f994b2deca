"""Scripts, run by hand, that fit the parameters in `sim/cost/params` on folders of measured kernels."""
