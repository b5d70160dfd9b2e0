// From disk a browser lets no page read another one: results of a search come without the lines around them.
if (location.protocol === "file:")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
