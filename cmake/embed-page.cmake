# cmake -DFOLDER=tensor/profile/page -DOUTPUT=page.c -P cmake/embed-page.cmake
# Writes the memory timeline's page, with its styles and scripts in it, and the picture's styles as strings of C.
foreach (name IN ITEMS page.html page.css picture.css recording.js layers.js chart.js page.js)
  file (READ "${FOLDER}/${name}" text_${name})
endforeach ()

set (page "${text_page.html}")
string (REPLACE "@STYLE@" "${text_page.css}" page "${page}")
string (REPLACE "@SCRIPT@" "${text_recording.js}${text_layers.js}${text_chart.js}${text_page.js}" page "${page}")

function (embed name text)
  string (HEX "${text}" bytes)
  string (REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string (REGEX REPLACE "(................................................................................)" "\\1\n  "
          bytes "${bytes}")
  file (APPEND "${OUTPUT}.new" "const char ${name}[] = {\n  ${bytes}0\n};\n")
endfunction ()

file (WRITE "${OUTPUT}.new" "#include \"tensor/profile/page/page-private.h\"\n")
embed (ebb_timeline_page "${page}")
embed (ebb_timeline_picture_style "${text_picture.css}")
file (RENAME "${OUTPUT}.new" "${OUTPUT}")
