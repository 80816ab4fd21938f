"""Judgements on results: bottlenecks, the verdict on a campaign, the rank among published results."""
