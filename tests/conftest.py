"""What all tests start from."""

import signal

# A runner started in the background hands down ignored signals (nohup, `&` of a shell), and the processes under test
# would rightly keep ignoring them: the tests that send signals need the defaults.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
