"""The vendors of GPUs, one module each, which has its vendor as VENDOR (hardware/gpus/vendor.py)."""
