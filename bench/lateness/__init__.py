"""How late delayed jobs start: one at a time, a thousand a second, and all of them in one second."""
