"""The one door for what users pass: it is checked here, and what is wrong is said with what to do about it."""
