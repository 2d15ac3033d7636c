"""What knows processes, sockets, clocks that tick and HTTP: the API, the worker, the command line, the demo."""
