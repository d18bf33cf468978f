"""Tools and manual pages for assistants over the Model Context Protocol."""
