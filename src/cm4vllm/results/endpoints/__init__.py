"""Results of MLPerf Endpoints, as curves of points."""
