# The target "docs": the reference of the public interface, as HTML in reference/.
find_program (EBB_GI_DOCGEN gi-docgen)
mark_as_advanced (EBB_GI_DOCGEN)
if (NOT EBB_BUILDS_INTROSPECTION OR NOT EBB_GI_DOCGEN)
  return ()
endif ()

configure_file (docs/ebb.toml.in "${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" @ONLY)
add_custom_command (OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/reference/index.html"
  COMMAND "${EBB_GI_DOCGEN}" generate --quiet --no-namespace-dir
    "--config=${CMAKE_CURRENT_BINARY_DIR}/ebb.toml" "--content-dir=${CMAKE_CURRENT_SOURCE_DIR}/docs"
    "--output-dir=${CMAKE_CURRENT_BINARY_DIR}/reference" "${EBB_GIR}"
  DEPENDS "${EBB_GIR}" "${CMAKE_CURRENT_BINARY_DIR}/ebb.toml"
  COMMENT "Writing the reference"
  VERBATIM)
add_custom_target (docs DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/reference/index.html")
