# Tests of many processes: tests/mpi/NAME.c runs under mpirun as mpi-NAME-2 and mpi-NAME-4, label mpi; all processes on
# this machine, over shared memory and the loopback device. A test that can't run here exits with 77.
set (EBB_MPI_LAUNCH "${tests_dir}/mpi/launch")
# Open MPI's plugins are gone when leaks are looked for: only a whole stack shows that the allocation was theirs.
set (mpi_environment OMP_NUM_THREADS=1 "ASAN_OPTIONS=allocator_may_return_null=1:fast_unwind_on_malloc=0"
  "LSAN_OPTIONS=suppressions=${tests_dir}/mpi/lsan.supp:print_suppressions=0")

# Runs a program's target under mpirun, once for each number of ranks in the list: mpi-NAME-RANKS. What follows are the
# program's arguments.
function (ebb_add_mpi_test name program ranks)
  foreach (n IN LISTS ranks)
    set (test mpi-${name}-${n})
    add_test (NAME ${test} COMMAND "${EBB_MPI_LAUNCH}" ${n} $<TARGET_FILE:${program}> ${ARGN})
    # One thread for each rank, and a time after which a rank that waits in vain says so.
    ebb_set_test_properties (${test} mpi 180 ${mpi_environment} EBB_PROCESS_GROUP_TIMEOUT=60)
    set_tests_properties (${test} PROPERTIES PROCESSORS 2)
  endforeach ()
endfunction ()

if (EBB_MPI)
  file (GLOB mpi_test_files CONFIGURE_DEPENDS "${tests_dir}/mpi/*.c")
  foreach (file IN LISTS mpi_test_files)
    cmake_path (GET file STEM name)
    set (twin ebb)
    ebb_read_needs (needs "${file}")
    if ("private-headers" IN_LIST needs)
      set (twin ebb-static)
    endif ()
    ebb_add_program (test-mpi-${name} "${file}" ${twin} tests/mpi)
    # That of faults starts its own jobs: they are meant to fail.
    if (name MATCHES "^faults")
      # Its own functions of MPI come before the library's.
      target_link_libraries (test-mpi-${name} PRIVATE MPI::MPI_C)
      set_target_properties (test-mpi-${name} PROPERTIES ENABLE_EXPORTS ON)
      add_test (NAME mpi-${name} COMMAND test-mpi-${name})
      ebb_set_test_properties (mpi-${name} mpi 180 ${mpi_environment} "EBB_MPI_LAUNCH=${EBB_MPI_LAUNCH}")
    else ()
      ebb_add_mpi_test (${name} test-mpi-${name} "2;4")
    endif ()
  endforeach ()
endif ()
