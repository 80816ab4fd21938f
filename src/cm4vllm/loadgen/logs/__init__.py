"""What LoadGen writes: its logs read into typed values, and the calculations that it makes with them."""
