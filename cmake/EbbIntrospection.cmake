# Ebb-1.0.gir and Ebb-1.0.typelib. A sanitized library can't be loaded by the scanner's dumper, so not then.
set (EBB_BUILDS_INTROSPECTION OFF)
set (EBB_BUILDS_VAPI OFF)
if (NOT EBB_INTROSPECTION OR EBB_SANITIZE)
  return ()
endif ()
if (CMAKE_CROSSCOMPILING)
  message (STATUS "cross-building: no GIR, no typelib, no language bindings")
  return ()
endif ()

find_program (EBB_GIR_SCANNER g-ir-scanner)
find_program (EBB_GIR_COMPILER g-ir-compiler)
mark_as_advanced (EBB_GIR_SCANNER EBB_GIR_COMPILER)
if (NOT EBB_GIR_SCANNER OR NOT EBB_GIR_COMPILER)
  message (STATUS "g-ir-scanner or g-ir-compiler not found: no GIR, no typelib, no language bindings")
  add_custom_target (ebb-introspection) # scripts/quickstart names it
  return ()
endif ()
set (EBB_BUILDS_INTROSPECTION ON)

set (EBB_GIR "${CMAKE_CURRENT_BINARY_DIR}/${EBB_NAMESPACE_VERSION}.gir")
set (EBB_TYPELIB "${CMAKE_CURRENT_BINARY_DIR}/${EBB_NAMESPACE_VERSION}.typelib")

set (gir_files "${EBB_VERSION_HEADER}" ebb.h ${EBB_PUBLIC_HEADERS} ${EBB_SOURCES})
list (TRANSFORM gir_files REPLACE "^([^/].*)$" "${CMAKE_CURRENT_SOURCE_DIR}/\\1")
set (gir_file_list "${CMAKE_CURRENT_BINARY_DIR}/gir-files.txt")
string (REPLACE ";" "\n" gir_file_lines "${gir_files}")
file (CONFIGURE OUTPUT "${gir_file_list}" CONTENT "@gir_file_lines@\n" @ONLY)

set (gir_warnings --warn-all)
if (EBB_WERROR)
  list (APPEND gir_warnings --warn-error)
endif ()

add_custom_command (OUTPUT "${EBB_GIR}"
  COMMAND ${CMAKE_COMMAND} -E env "CC=${CMAKE_C_COMPILER}" "XDG_CACHE_HOME=${CMAKE_CURRENT_BINARY_DIR}/gir-cache"
    "${EBB_GIR_SCANNER}" --quiet ${gir_warnings}
    --namespace=Ebb --nsversion=${EBB_API_VERSION} --identifier-prefix=Ebb --symbol-prefix=ebb
    --include=GLib-2.0 --include=GObject-2.0 --include=Gio-2.0
    --pkg=glib-2.0 --pkg=gobject-2.0 --pkg=gio-2.0 --pkg-export=ebb-${EBB_API_VERSION}
    --c-include=ebb/ebb.h
    --library=ebb-${EBB_API_VERSION} "--library-path=$<TARGET_FILE_DIR:ebb>"
    --cflags-begin -DEBB_COMPILATION "-I${CMAKE_CURRENT_SOURCE_DIR}" "-I${EBB_GENERATED_DIR}" --cflags-end
    "--sources-top-dirs=${CMAKE_CURRENT_SOURCE_DIR}" "--sources-top-dirs=${EBB_GENERATED_DIR}"
    "--filelist=${gir_file_list}" "--output=${EBB_GIR}"
  DEPENDS ebb ${gir_files} "${gir_file_list}"
  COMMENT "Scanning ${EBB_NAMESPACE_VERSION}.gir"
  VERBATIM)
add_custom_command (OUTPUT "${EBB_TYPELIB}"
  COMMAND "${EBB_GIR_COMPILER}" "${EBB_GIR}" "--output=${EBB_TYPELIB}"
  DEPENDS "${EBB_GIR}"
  COMMENT "Compiling ${EBB_NAMESPACE_VERSION}.typelib"
  VERBATIM)
add_custom_target (ebb-introspection ALL DEPENDS "${EBB_GIR}" "${EBB_TYPELIB}")

# For Python: docstrings from the comments of C, and the types of the package ebb for editors and type checkers. The
# interpreter is the one that the distribution's PyGObject belongs to.
find_program (EBB_GI_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
mark_as_advanced (EBB_GI_PYTHON)
set (EBB_BUILDS_PYTHON OFF)
set (EBB_PYTHON_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/bindings/python")
if (EBB_GI_PYTHON)
  execute_process (COMMAND "${EBB_GI_PYTHON}" -c "import gi" RESULT_VARIABLE failed ERROR_QUIET)
  if (failed)
    message (STATUS "PyGObject was not found (python3-gi): Python's docstrings and types are left out")
  else ()
    set (EBB_BUILDS_PYTHON ON)
    set (EBB_PYTHON_DOCS "${CMAKE_CURRENT_BINARY_DIR}/python/ebb/docs.json")
    set (EBB_PYTHON_STUB "${CMAKE_CURRENT_BINARY_DIR}/python/ebb/__init__.pyi")
    file (GLOB_RECURSE python_files CONFIGURE_DEPENDS "${EBB_PYTHON_SOURCES}/*.py")
    set (docs_script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/python-docs.py")
    set (stub_script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/python-stub.py")
    add_custom_command (OUTPUT "${EBB_PYTHON_DOCS}"
      COMMAND "${EBB_GI_PYTHON}" "${docs_script}" "${EBB_GIR}" "${EBB_PYTHON_DOCS}"
      DEPENDS "${EBB_GIR}" "${docs_script}"
      COMMENT "Writing Python's docstrings"
      VERBATIM)
    add_custom_command (OUTPUT "${EBB_PYTHON_STUB}"
      COMMAND ${CMAKE_COMMAND} -E env --unset=GI_TYPELIB_PATH "PYTHONPATH=${EBB_PYTHON_SOURCES}"
        "EBB_BUILD_DIR=${CMAKE_CURRENT_BINARY_DIR}" PYTHONDONTWRITEBYTECODE=1
        "${EBB_GI_PYTHON}" "${stub_script}" "${EBB_PYTHON_STUB}"
      DEPENDS "${EBB_TYPELIB}" "${EBB_PYTHON_DOCS}" "${stub_script}" ${python_files}
      COMMENT "Writing Python's types"
      VERBATIM)
    add_custom_target (ebb-python ALL DEPENDS "${EBB_PYTHON_DOCS}" "${EBB_PYTHON_STUB}")
  endif ()
endif ()

# For Vala, from the GIR and the metadata in bindings/vala.
find_program (EBB_VAPIGEN vapigen)
mark_as_advanced (EBB_VAPIGEN)
set (vala_metadata_dir "${CMAKE_CURRENT_SOURCE_DIR}/bindings/vala")
set (vala_metadata "${vala_metadata_dir}/${EBB_NAMESPACE_VERSION}.metadata")
if (EBB_VAPIGEN AND EXISTS "${vala_metadata}")
  set (EBB_BUILDS_VAPI ON)
  set (EBB_VAPI "${CMAKE_CURRENT_BINARY_DIR}/ebb-${EBB_API_VERSION}.vapi")
  set (EBB_VAPI_DEPS "${CMAKE_CURRENT_BINARY_DIR}/ebb-${EBB_API_VERSION}.deps")
  file (WRITE "${EBB_VAPI_DEPS}" "gio-2.0\n")
  add_custom_command (OUTPUT "${EBB_VAPI}"
    COMMAND "${EBB_VAPIGEN}" --quiet --library=ebb-${EBB_API_VERSION} "--metadatadir=${vala_metadata_dir}" --pkg=gio-2.0
      "--directory=${CMAKE_CURRENT_BINARY_DIR}" "${EBB_GIR}"
    DEPENDS "${EBB_GIR}" "${vala_metadata}"
    COMMENT "Writing ebb-${EBB_API_VERSION}.vapi"
    VERBATIM)
  add_custom_target (ebb-vapi ALL DEPENDS "${EBB_VAPI}")
endif ()
