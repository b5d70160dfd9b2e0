# examples/NAME.c, or all sources in examples/NAME/, make the program examples/NAME in the build folder.
file (GLOB example_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/examples/*.c")
file (GLOB example_folder_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/examples/*/*.c")

set (EBB_EXAMPLES)
foreach (file IN LISTS example_files)
  cmake_path (GET file STEM name)
  list (APPEND EBB_EXAMPLES ${name})
  set (sources_${name} "${file}")
endforeach ()
foreach (file IN LISTS example_folder_files)
  cmake_path (GET file PARENT_PATH folder)
  cmake_path (GET folder FILENAME name)
  list (APPEND EBB_EXAMPLES ${name})
  list (APPEND sources_${name} "${file}")
endforeach ()
list (REMOVE_DUPLICATES EBB_EXAMPLES)

foreach (name IN LISTS EBB_EXAMPLES)
  string (REPLACE "_" "-" installed_name "ebb-${name}")
  add_executable (example-${name} ${sources_${name}})
  target_link_libraries (example-${name} PRIVATE ebb ebb-warnings ebb-codegen PkgConfig::EBB_JSON_GLIB)
  if (EBB_MATH)
    target_link_libraries (example-${name} PRIVATE ${EBB_MATH})
  endif ()
  set_target_properties (example-${name} PROPERTIES
    OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/examples"
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install (PROGRAMS "$<TARGET_FILE:example-${name}>" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME ${installed_name})
endforeach ()
