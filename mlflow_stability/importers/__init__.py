"""Read logs that other people's tools wrote: files and folders become `RunHistory`."""
