"""LoadGen's logs: read into typed values, with the calculations that LoadGen makes with them."""
