"""The official power measurement of MLPerf: its samples, its session, its programs, and a simulated analyzer."""
