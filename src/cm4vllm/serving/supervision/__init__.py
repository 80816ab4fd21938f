"""The processes of servers that were started here: kept alive, watched and ended."""
