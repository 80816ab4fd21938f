"""The compliance tests of MLPerf Inference for language models: audit configuration and verification."""
