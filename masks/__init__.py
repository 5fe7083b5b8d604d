"""What is visible: column masks, their families, their tiles, and converters. Imports torch only."""
