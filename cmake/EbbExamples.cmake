# examples/NAME.c, or all sources in and below examples/NAME/, make the program examples/NAME in the build folder.
# Programs of one file are there to be read and are not installed. A folder without a main.c is what programs share: a
# library for those beside it, which include "FOLDER/FILE.h".
file (GLOB example_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/examples/*.c")
file (GLOB_RECURSE example_folder_files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/examples"
  "${CMAKE_CURRENT_SOURCE_DIR}/examples/*.c")
list (FILTER example_folder_files INCLUDE REGEX "/")
# What writes man pages and completions at build time.
file (GLOB page_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/examples/pages/*.c")
list (FILTER example_folder_files EXCLUDE REGEX "^pages/")

set (EBB_EXAMPLES)
set (shared_folders)
foreach (file IN LISTS example_files)
  cmake_path (GET file STEM name)
  list (APPEND EBB_EXAMPLES ${name})
  set (sources_${name} "${file}")
endforeach ()
foreach (file IN LISTS example_folder_files)
  string (REGEX REPLACE "/.*" "" name "${file}")
  if (EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/examples/${name}/main.c")
    list (APPEND EBB_EXAMPLES ${name})
  else ()
    list (APPEND shared_folders ${name})
  endif ()
  list (APPEND sources_${name} "${CMAKE_CURRENT_SOURCE_DIR}/examples/${file}")
endforeach ()
list (REMOVE_DUPLICATES EBB_EXAMPLES)
list (REMOVE_DUPLICATES shared_folders)

# Private sources of the library that the programs compile for themselves until they train by EbbTrainer, which calls
# them. They use public functions alone.
set (insiders train/concessions.c train/event-file.c train/log.c train/progress.c)
list (APPEND sources_common ${insiders})
set_property (SOURCE ${insiders} APPEND PROPERTY COMPILE_DEFINITIONS EBB_COMPILATION)

set (shared_libraries)
foreach (name IN LISTS shared_folders)
  add_library (example-${name} STATIC ${sources_${name}})
  target_link_libraries (example-${name} PUBLIC ebb PkgConfig::EBB_JSON_GLIB PRIVATE ebb-warnings ebb-codegen)
  if (EBB_MATH)
    target_link_libraries (example-${name} PUBLIC ${EBB_MATH})
  endif ()
  target_include_directories (example-${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/examples")
  list (APPEND shared_libraries example-${name})
endforeach ()

# The man page of a program and its completions for shells, from its table of options in page.c.
set (EBB_ZSH_COMPLETIONS_DIR "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" CACHE STRING
  "Where completions for zsh are installed")
set (EBB_PAGES)
function (ebb_add_pages name installed_name)
  add_executable (pages-${name} ${page_sources} "${CMAKE_CURRENT_SOURCE_DIR}/examples/${name}/page.c")
  target_link_libraries (pages-${name} PRIVATE
    ${shared_libraries} ebb ebb-warnings ebb-codegen PkgConfig::EBB_JSON_GLIB)
  set_target_properties (pages-${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/pages")
  set (folder "${CMAKE_CURRENT_BINARY_DIR}/pages")
  set (pages "${folder}/man/${installed_name}.1" "${folder}/bash/${installed_name}" "${folder}/zsh/_${installed_name}"
    "${folder}/fish/${installed_name}.fish")
  add_custom_command (OUTPUT ${pages} COMMAND pages-${name} "${folder}" DEPENDS pages-${name}
    COMMENT "Writing the man page of ${installed_name}" VERBATIM)
  install (FILES "${folder}/man/${installed_name}.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  install (FILES "${folder}/bash/${installed_name}"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install (FILES "${folder}/zsh/_${installed_name}" DESTINATION "${EBB_ZSH_COMPLETIONS_DIR}")
  install (FILES "${folder}/fish/${installed_name}.fish"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
  set (EBB_PAGES ${EBB_PAGES} ${pages} PARENT_SCOPE)
endfunction ()

# A program is built under the name that it is installed with, so that CMake itself rewrites its RUNPATH;
# examples/NAME in the build folder is a link to it.
foreach (name IN LISTS EBB_EXAMPLES)
  string (REPLACE "_" "-" installed_name "ebb-${name}")
  add_executable (example-${name} ${sources_${name}})
  target_link_libraries (example-${name} PRIVATE
    ${shared_libraries} ebb ebb-warnings ebb-codegen PkgConfig::EBB_JSON_GLIB)
  if (EBB_MATH)
    target_link_libraries (example-${name} PRIVATE ${EBB_MATH})
  endif ()
  set_target_properties (example-${name} PROPERTIES
    OUTPUT_NAME ${installed_name}
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/examples"
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  add_custom_command (TARGET example-${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E create_symlink ${installed_name} "${CMAKE_CURRENT_BINARY_DIR}/examples/${name}")
  if (NOT sources_${name} MATCHES "/examples/[^/]*$")
    install (TARGETS example-${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    ebb_add_pages (${name} ${installed_name})
  endif ()
endforeach ()
add_custom_target (ebb-pages ALL DEPENDS ${EBB_PAGES})
