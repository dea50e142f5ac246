"""Reports people read: an experiment's page, charts, transcripts as HTML and as terminal text."""
