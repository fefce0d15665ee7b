"""Looking things up in the archive: in one session (``find``), or in all that somebody may read
(``find_everywhere``). What is behind them depends on the database."""
