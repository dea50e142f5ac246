"""What an installation runs beside the code: images, charts, migrations."""
