int main () {
  print ("libebb %s\n", Ebb.get_version_string ());
  return Ebb.check_version (Ebb.MAJOR_VERSION, Ebb.MINOR_VERSION, Ebb.MICRO_VERSION) ? 0 : 1;
}
